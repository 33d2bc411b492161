"""Position encodings: one class per kind, computed only from positions.

Positions are counted from 0 in a state of the model, int32 (B,): 32 bits because WebGPU and several mobile accelerators
have no 64-bit arithmetic. Rotary and sinusoidal positions are computed from this state at every step, so they
have no last position; a learned table has one. Positions in scores depend only on distances.

With past_end wrap:N, every use of an absolute position, as an angle or as a table row, takes the position modulo N.
Layers that depend only on distances (windows, softmax layers, features rotated after φ) use the unwrapped position,
because the modulo would change distances across a multiple of N.
"""
