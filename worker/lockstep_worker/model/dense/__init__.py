"""The fast path for dense decoders of Llama's, Qwen's and Mistral's kind: own kernels over transformers' weights.

Read `weights` (what is taken from the network), `recognise` (how), `obstacles` (from which networks not), `forward`
(any batch) and `decode` (a step of decodes, in few kernels a layer). What a network does not fit runs through
transformers' own forward, which is the reference.
"""
