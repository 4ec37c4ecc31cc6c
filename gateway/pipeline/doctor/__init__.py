"""Why a job is slow: causes with their evidence, found in the progress of its query."""
