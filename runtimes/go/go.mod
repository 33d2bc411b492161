module t2r.internal/t2r

go 1.22
