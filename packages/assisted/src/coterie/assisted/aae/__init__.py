"""The Assisted AutoEncoder: network, training on sparse cells, prediction."""
