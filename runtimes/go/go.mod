module t2r

go 1.22
