"""The messages of Ebbtide: the one source of the CRDs and of everything said between its parts."""
