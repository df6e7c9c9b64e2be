"""Readers: from the files and tables that people have to logs and requests, one module a form."""
