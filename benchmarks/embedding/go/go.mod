module greedy

go 1.22

require t2r.internal/t2r v0.0.0

replace t2r.internal/t2r => ../../../runtimes/go
