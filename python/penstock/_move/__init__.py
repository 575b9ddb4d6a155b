"""to_device and to_host, for nests of arrays, modules and weights."""
