"""Files of any corpus: reading text and XML, writing directories whole."""
