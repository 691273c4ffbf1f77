"""The objects that the operator makes, each built by a pure function."""
