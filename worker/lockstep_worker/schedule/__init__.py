"""Planning on the host, without torch: `sequence`, `slots` (the slot table), `scheduler` (who runs next), `update`."""
