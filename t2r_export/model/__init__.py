"""The eager model, written in operators that torch computes and a recorder writes as a graph."""
