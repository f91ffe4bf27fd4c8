"""Options of text-line recipes, compared on mini_ocr."""
