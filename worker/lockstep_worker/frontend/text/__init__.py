"""Token ids and text. Knows no requests and no ranks.

Read `tokenizer` (the door: everything that depends on the vocabulary), `chat` (a conversation becomes text),
`detokenize` (ids become text, one at a time) and `stops` (where the text ends).
"""
