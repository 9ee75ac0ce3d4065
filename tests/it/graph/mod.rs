//! Models that are not chains, whatever of them lies where: equal to the same model in one process of PyTorch
//! (`tests/data/graph.py`) after 50 steps, and what is said of graphs that are wrong.

mod jobs;
mod models;
mod outputs;
mod own_steps;
mod placements;
mod resumed;
mod said;
