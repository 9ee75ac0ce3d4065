mod pull_push;
mod remote_module;
mod shards;
mod state;
