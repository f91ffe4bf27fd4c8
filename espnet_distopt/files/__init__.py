"""Reads text, XML and YAML files, and writes files and directories whole."""
