"""Chapter cache: any split of a sequence into steps gives what one pass gives."""
