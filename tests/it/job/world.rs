//! Ranks, roles, and where a value came from.

use pstrain::job::{self, JobText, Override, Sources};

use super::{SOUND, load, replaced, said, set, sound};

#[test]
fn worlds_that_do_not_fit_the_roles() {
    insta::assert_snapshot!(replaced("trainer = \"rest\"", "trainer = 2"), @r#"
    error: job `x.toml`: `cluster.world_size` = 4 does not fit the roles, which take 3 ranks
      from: x.toml, line 4
      hint: use 3, or let one role take "rest"
    "#);
    insta::assert_snapshot!(set(&["cluster.world_size=1"]), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: option --set cluster.world_size=1
      hint: use at least 2
    ");
    insta::assert_snapshot!(replaced("server = 1", "server = \"rest\""), @r#"
    error: job `x.toml`: `roles.trainer` = "rest" is the second "rest": role `server` takes it already
      from: x.toml, line 7
      hint: give one of them a number of ranks
    "#);
    insta::assert_snapshot!(replaced("trainer = \"rest\"", "trainer = \"others\""), @r#"
    error: job `x.toml`: `roles.trainer` = "others" is not a valid number of ranks
      from: x.toml, line 7
      hint: use a number, or "rest" for one role
    "#);
    insta::assert_snapshot!(replaced("server = 1", "server = 0"), @r"
    error: job `x.toml`: `roles.server` = 0 is below 1
      from: x.toml, line 6
      hint: use an integer from 1 to 4096
    ");
    insta::assert_snapshot!(replaced("server = 1", "server2 = 1"), @r"
    error: job `x.toml`: `server2` is not a valid name for a role
      from: x.toml, line 6
      hint: a name is a letter, then letters, `_` and `-`, with no digit at the end, at most 32
    ");
    insta::assert_snapshot!(replaced("[roles]\nserver = 1\ntrainer = \"rest\"", ""), @r#"
    error: job `x.toml`: `roles` is missing
      hint: for example [roles] with server = 1 and trainer = "rest"
    "#);
}

#[test]
fn ranks_outside_the_world_and_ranks_in_the_file() {
    insta::assert_snapshot!(said(load(SOUND, &[("RANK", "4")], &[])), @r"
    error: job `x.toml`: `cluster.rank` = 4 is outside the world of 4 ranks
      from: environment variable RANK
      hint: ranks count from 0 to 3
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("RANK", "one")], &[])), @r#"
    error: job `x.toml`: `cluster.rank`: expected an integer from 0 to 4095, found "one"
      from: environment variable RANK
      hint: for example 4
    "#);
    insta::assert_snapshot!(replaced("world_size = 4", "rank = 1"), @r"
    error: job `x.toml`: `cluster.rank` = 1 stands in the job file, which all ranks share
      from: x.toml, line 4
      hint: give it with --rank or the environment variable RANK
    ");
}

#[test]
fn each_value_is_traced_to_where_it_came_from() {
    insta::assert_snapshot!(said(load(SOUND, &[("PSTRAIN_TRAIN__BATCH_SIZE", "0")], &[])), @r"
    error: job `x.toml`: `train.batch_size` = 0 is below 1
      from: environment variable PSTRAIN_TRAIN__BATCH_SIZE
      hint: use an integer from 1 to 16777216
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("PSTRAIN_TRAIN__BATCHSIZE", "8")], &[])), @r"
    error: job `x.toml`: unknown key `train.batchsize`
      from: environment variable PSTRAIN_TRAIN__BATCHSIZE
      hint: did you mean `batch_size`?
    ");
    insta::assert_snapshot!(said(load(SOUND, &[("WORLD_SIZE", "four")], &[])), @r#"
    error: job `x.toml`: `cluster.world_size`: expected an integer from 1 to 4096, found "four"
      from: environment variable WORLD_SIZE
      hint: for example 4
    "#);
    insta::assert_snapshot!(said(load(SOUND, &[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")], &[])), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: environment variable SLURM_NTASKS
      hint: use at least 2
    ");
    insta::assert_snapshot!(set(&["train.epochs=none", "optimizer.lr=-1"]), @r#"
    error: job `x.toml`: `train.epochs`: expected an integer from 1 to 1000000, found "none"
      from: option --set train.epochs=none
      hint: for example 4
    error: job `x.toml`: `optimizer.lr` = -1 is not above 0
      from: option --set optimizer.lr=-1
      hint: use a number above 0
    "#);
    insta::assert_snapshot!(set(&["modules.net.layers[1].in_features=65"]), @r"
    error: job `x.toml`: `modules.net.layers[1]`: linear `fc1` expects 65 features (in_features) in the last dimension; [64] comes from flatten `0`
      from: option --set modules.net.layers[1].in_features=65
      hint: write in_features = 64
    ");
    let overrides = [Override::option("--world-size", "cluster.world_size", 1)];
    let file = JobText { name: "x.toml", text: SOUND };
    insta::assert_snapshot!(said(job::load(&Sources { file, env: vec![], overrides: &overrides })), @r"
    error: job `x.toml`: `cluster.world_size` = 1 leaves nobody for the role that takes the rest: the others take 1 rank
      from: option --world-size 1
      hint: use at least 2
    ");
}

#[test]
fn settings_that_cannot_be_placed() {
    insta::assert_snapshot!(set(&["train..epochs=1", "modules.net.layers[9].p=1", "train.epochs[0]=1", "data.train=[1, 2"]), @r"
    error: job `x.toml`: `train..epochs`: not a valid key: write it like train.batch_size or modules.net.layers[1].p
      from: option --set train..epochs=1
    error: job `x.toml`: `modules.net.layers[9].p`: the list has 4 entries, counted from 0, and 9 is not one of them
      from: option --set modules.net.layers[9].p=1
    error: job `x.toml`: `train.epochs[0]`: there is no list here
      from: option --set train.epochs[0]=1
    error: job `x.toml`: `data.train`: the value is not valid TOML: unclosed array, expected `]`
      from: option --set data.train=[1, 2
    ");
}

#[test]
fn consistency_and_staleness_go_together() {
    insta::assert_snapshot!(set(&["train.consistency=ssp"]), @r#"
    error: job `x.toml`: `train.staleness` is missing, and `train.consistency` = "ssp" needs it
      from: option --set train.consistency=ssp
      hint: how many steps a trainer may be ahead of the slowest, for example staleness = 4
    "#);
    insta::assert_snapshot!(set(&["train.staleness=4"]), @r#"
    error: job `x.toml`: `train.staleness` = 4 bounds nothing: `train.consistency` = "async" does not use it
      from: option --set train.staleness=4
      hint: leave it out, or use consistency = "ssp"
    "#);
    sound(SOUND, &[], &["train.consistency=ssp", "train.staleness=4"]);
}

#[test]
fn two_ways_to_rank_0_have_to_agree() {
    let tcp = "world_size = 4\ninit = \"tcp://10.0.0.1:29500\"\nmaster_addr = \"10.0.0.2\"";
    insta::assert_snapshot!(replaced("world_size = 4", tcp), @r#"
    error: job `x.toml`: `cluster.master_addr` = "10.0.0.2" disagrees with `cluster.init` = "tcp://10.0.0.1:29500"
      from: x.toml, line 6
      hint: leave one of them out, or write cluster.init = "env://"
    "#);
    let tcp = SOUND.replace("world_size = 4", "world_size = 4\ninit = \"tcp://10.0.0.1:29500\"");
    assert_eq!(sound(&tcp, &[], &[]).job.cluster.master(), "10.0.0.1:29500");
    insta::assert_snapshot!(set(&["cluster.init=file://tmp/x"]), @r#"
    error: job `x.toml`: `cluster.init` = "file://tmp/x" names no file that all ranks know
      from: option --set cluster.init=file://tmp/x
      hint: begin it at the root: "file:///tmp/my_job"
    "#);
    insta::assert_snapshot!(set(&["cluster.init=tcp://nowhere"]), @r#"
    error: job `x.toml`: `cluster.init` = "tcp://nowhere" is not a valid way to meet
      from: option --set cluster.init=tcp://nowhere
      hint: use "env://", "tcp://HOST:PORT" or "file:///PATH", for example "tcp://10.0.0.1:29500"
    "#);
    insta::assert_snapshot!(set(&["cluster.payload=shared"]), @r#"
    error: job `x.toml`: `cluster.payload` = "shared" is not one of auto, cma, shm, bulk or inline
      from: option --set cluster.payload=shared
      hint: for example "auto"
    "#);
    insta::assert_snapshot!(set(&["cluster.backend=ncl", "cluster.lost_after_ms=600"]), @r#"
    error: job `x.toml`: `cluster.backend` = "ncl" is not one of auto, gloo, nccl or mpi
      from: option --set cluster.backend=ncl
      hint: did you mean "nccl"?
    error: job `x.toml`: `cluster.lost_after_ms` = 600 is less than two heartbeats of 500 ms
      from: option --set cluster.lost_after_ms=600
      hint: use at least 1000, or a shorter heartbeat_ms
    "#);
}

/// The collectives demo has no section of a training job.
const TOUR: &str = "[cluster]\nworld_size = 4\n[roles]\nrank = \"rest\"\n[collectives]\ngroup = [0, 2]\n";

#[test]
fn the_demo_has_groups_that_have_somebody_to_send_to() {
    sound(TOUR, &[], &[]);
    insta::assert_snapshot!(said(load(TOUR, &[], &["collectives.group=[0]"])), @r"
    error: job `x.toml`: `collectives.group` = [0] is not a valid group
      from: option --set collectives.group=[0]
      hint: name at least two ranks, each once, for example [0, 1]
    ");
    insta::assert_snapshot!(said(load(TOUR, &[], &["collectives.root=3"])), @r"
    error: job `x.toml`: `collectives.root` = 3 is nobody in collectives.group, which has 2 ranks
      from: option --set collectives.root=3
      hint: use 0 to 1: it counts within each group
    ");
    let alone = TOUR.replace("group = [0, 2]\n", "show = [\"send_recv\"]\n");
    insta::assert_snapshot!(said(load(&alone, &[], &["cluster.world_size=1"])), @r#"
    error: job `x.toml`: `collectives.show` = ["send_recv"] has `send_recv`, and one rank has nobody to send to
      from: x.toml, line 6
      hint: use at least two ranks, or leave it out
    "#);
    let whole = TOUR.replace("group = [0, 2]\n", "");
    assert!(load(&whole, &[], &["cluster.world_size=1"]).is_ok(), "alone it shows what one rank can do");
}

#[test]
fn a_backend_carries_the_tensors_of_the_jobs_devices() {
    insta::assert_snapshot!(set(&["cluster.backend=nccl"]), @r#"
    error: job `x.toml`: `cluster.backend` = "nccl" carries tensors on GPUs, and cluster.num_gpus = 0
      from: option --set cluster.backend=nccl
      hint: set cluster.num_gpus, or use "gloo"
    "#);
    insta::assert_snapshot!(set(&["cluster.backend=mpi", "cluster.num_gpus=1"]), @r#"
    error: job `x.toml`: `cluster.backend` = "mpi" carries tensors in main memory, and cluster.num_gpus puts them on GPUs
      from: option --set cluster.backend=mpi
      hint: set cluster.num_gpus = 0, or use "nccl"
    "#);
    sound(SOUND, &[], &["cluster.backend=nccl", "cluster.num_gpus=1"]);
}

#[test]
fn a_driver_is_one_rank_that_does_nothing_else() {
    let driven =
        SOUND.replace("server = 1", "master = 1\nserver = 1").replace("epochs = 2", "driver = \"master\"");
    let job = sound(&driven, &[], &[]).job;
    assert_eq!(job.training().unwrap().train.driver.as_ref().unwrap().name, "master");
    insta::assert_snapshot!(said(load(&driven, &[], &["train.driver=trainer"])), @r#"
    error: job `x.toml`: `train.driver` = "trainer" is the role that trains
      from: option --set train.driver=trainer
      hint: name a role of one rank that does not train, or leave it out: trainers start by themselves
    "#);
    insta::assert_snapshot!(said(load(&driven, &[], &["train.driver=server"])), @r#"
    error: job `x.toml`: `train.driver` = "server" holds `net`, and the driver holds no module
      from: option --set train.driver=server
      hint: place it on another role, or leave the driver out: trainers start by themselves
    "#);
    insta::assert_snapshot!(said(load(&driven, &[], &["train.driver=maste"])), @r#"
    error: job `x.toml`: `train.driver` = "maste" is not a role of this job
      from: option --set train.driver=maste
      hint: did you mean `master`?
    "#);
    let two = driven.replace("master = 1", "master = 2");
    insta::assert_snapshot!(said(load(&two, &[], &[])), @r#"
    error: job `x.toml`: `train.driver` = "master" is a role of 2 ranks, and one rank drives
      from: x.toml, line 28
      hint: write master = 1 in [roles]
    "#);
}
