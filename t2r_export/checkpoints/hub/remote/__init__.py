"""A decoder that t2r-export made, for transformers. It requires only torch and transformers.

`t2r save MODEL FOLDER --as transformers` puts this file beside the weights. Names of weights and states are those of
t2r-export and its graphs. Linear attention and windows have states of constant size; softmax layers have a cache that
grows with the text. Licence: Apache-2.0.

    S_t = g_t S_{t-1} + φ(k_t) v_tᵀ      z_t = g_t z_{t-1} + φ(k_t)      o_t = φ(q_t)ᵀ S_t / guard(φ(q_t)·z_t)

(Kasai et al. 2021, arXiv 2103.13076, eq. 4 to 8; gates: Peng et al. 2021, arXiv 2103.02143; rotation of features: Su et
al. 2021, arXiv 2104.09864, eq. 19; hybrid layers: Zhang et al. 2024, arXiv 2410.10254; sinks: Xiao et al. 2023, arXiv
2309.17453). Letters: batch B, tokens T, heads H of queries and G of keys and values, sizes d, K (features) and V.
"""
