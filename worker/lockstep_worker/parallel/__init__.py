"""How ranks reach each other: `comm` for the step loop's collectives (MPI), `group` for the model's (torch)."""
