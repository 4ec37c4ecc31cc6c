"""HTTP as the contract has it: validated requests, ids, bodies, errors as Status.

`spec` is the OpenAPI document and checks requests against it; `status` has the errors.
"""
