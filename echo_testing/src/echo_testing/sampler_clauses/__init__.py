"""The clauses of the sampler contract, by subject; `SamplerContract` inherits them all."""
