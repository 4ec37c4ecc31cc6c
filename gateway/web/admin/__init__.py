"""What operators ask of a gateway that runs, on a port of its own: which streams there are, and
that they end.

Every worker takes requests from that one port, and asks the others: whichever it is, it answers
for all of them.
"""
