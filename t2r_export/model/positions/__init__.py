"""Where a model's sense of order comes from: one class per kind, computed from positions and from nothing else.

Positions are counted from 0 in a state of the model, int32 (B,): 32 bits because WebGPU and several mobile
accelerators have no 64-bit arithmetic. Rotary and sinusoidal positions are computed from that number at every step,
so nothing ends; a learned table ends where it ends. Positions in scores see distances alone.

With past_end wrap:N, every use of an absolute position, as an angle or as a row, is of the position modulo N. What sees
distances alone (windows, softmax layers, features that rotate behind φ) keeps the position as it is counted, since a
distance across the end of N would be another one.
"""
