"""Loader: batches of arrays, tables and files, gathered without worker processes; and the orders of samples."""
