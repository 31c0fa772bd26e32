//! `spinwire`: serve, measure and inspect RDMA from the command line.
fn main() {}
