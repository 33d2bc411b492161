/** Runs the graphs of t2r-export with libt2r. */
module t2r {
    exports t2r;
}
