//! How launchers tell a process which rank of which world it is, and where rank 0 listens: by variables, each with names of its
//! own. Pure.

use super::hostlist;

pub(super) const RANK: &str = "cluster.rank";
pub(super) const LOCAL_RANK: &str = "cluster.local_rank";
const WORLD_SIZE: &str = "cluster.world_size";
const MASTER_ADDR: &str = "cluster.master_addr";
const MASTER_PORT: &str = "cluster.master_port";

/// PyTorch's names, which anybody may set, and what each is.
pub(super) const PYTORCH: [(&str, &str); 5] = [
    ("RANK", RANK),
    ("WORLD_SIZE", WORLD_SIZE),
    ("LOCAL_RANK", LOCAL_RANK),
    ("MASTER_ADDR", MASTER_ADDR),
    ("MASTER_PORT", MASTER_PORT),
];

/// What a launcher's variable tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tells {
    /// The value of this key.
    Key(&'static str),
    /// The number of the machine. It is the rank where each machine has one, else it takes LOCAL_RANK to know that.
    Node,
    /// How many machines there are.
    Nodes,
    /// How many ranks each has. What is no number (torchrun knows `auto` and `gpu`) is one.
    PerNode,
    /// The machines, as Slurm writes them; of several the first has rank 0.
    SlurmNodes,
    /// Their addresses, one a line; of several the first has rank 0.
    Addresses,
}

/// A launcher by its variables. The first of them says that this is one of its processes.
struct Launcher(&'static [(&'static str, Tells)]);

/// The nearest first: mpirun inside of a Slurm job, or of a pod, knows its ranks, and the one around it does not.
const LAUNCHERS: [Launcher; 6] = [
    Launcher(&[
        ("OMPI_COMM_WORLD_RANK", Tells::Key(RANK)),
        ("OMPI_COMM_WORLD_SIZE", Tells::Key(WORLD_SIZE)),
        ("OMPI_COMM_WORLD_LOCAL_RANK", Tells::Key(LOCAL_RANK)),
    ]),
    Launcher(&[
        ("PMI_RANK", Tells::Key(RANK)),
        ("PMI_SIZE", Tells::Key(WORLD_SIZE)),
        ("MPI_LOCALRANKID", Tells::Key(LOCAL_RANK)),
    ]),
    // Not SLURM_LAUNCH_NODE_IPADDR: that is where srun was called, which may be a login node.
    Launcher(&[
        ("SLURM_PROCID", Tells::Key(RANK)),
        ("SLURM_NTASKS", Tells::Key(WORLD_SIZE)),
        ("SLURM_LOCALID", Tells::Key(LOCAL_RANK)),
        ("SLURM_STEP_NODELIST", Tells::SlurmNodes),
    ]),
    // Kubeflow's Trainer, which sets them for torchrun.
    Launcher(&[
        ("PET_NODE_RANK", Tells::Node),
        ("PET_NNODES", Tells::Nodes),
        ("PET_NPROC_PER_NODE", Tells::PerNode),
        ("PET_MASTER_ADDR", Tells::Key(MASTER_ADDR)),
        ("PET_MASTER_PORT", Tells::Key(MASTER_PORT)),
    ]),
    Launcher(&[
        ("SKYPILOT_NODE_RANK", Tells::Node),
        ("SKYPILOT_NUM_NODES", Tells::Nodes),
        ("SKYPILOT_NODE_IPS", Tells::Addresses),
    ]),
    // An indexed Job of Kubernetes. How many pods there are it does not tell: WORLD_SIZE has to.
    Launcher(&[("JOB_COMPLETION_INDEX", Tells::Key(RANK))]),
];

/// A value that a variable gives to a key, or why it gives none.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct FromLauncher {
    pub key: &'static str,
    pub value: Result<String, String>,
    pub variable: &'static str,
}

/// Whether a launcher tells something by this variable.
pub(super) fn is_of_launcher(name: &str) -> bool {
    LAUNCHERS.iter().any(|launcher| launcher.0.iter().any(|(known, _)| *known == name))
}

/// What the launcher tells that started this process, if one did. `value_of`: a variable's value, if it has any.
pub(super) fn told<'e>(value_of: impl Fn(&str) -> Option<&'e str>) -> Vec<FromLauncher> {
    let launcher = LAUNCHERS.iter().find(|launcher| value_of(launcher.0[0].0).is_some());
    let Some(Launcher(variables)) = launcher else { return Vec::new() };
    let valued = || variables.iter().filter_map(|&(name, tells)| Some((name, tells, value_of(name)?.trim())));
    let per_node = valued().find(|(_, tells, _)| *tells == Tells::PerNode);
    let per_node = per_node.and_then(|(_, _, value)| value.parse::<u64>().ok()).unwrap_or(1);
    let one = |(variable, tells, value): (&'static str, Tells, &str)| {
        let (key, value) = match tells {
            Tells::Key(key) => (key, Ok(value.to_owned())),
            Tells::Node => (RANK, rank_on_node(value, per_node, value_of("LOCAL_RANK"))),
            Tells::Nodes => (WORLD_SIZE, times(value, per_node)),
            Tells::PerNode => return None,
            Tells::SlurmNodes => (MASTER_ADDR, several(hostlist::expand(value))?),
            Tells::Addresses => (MASTER_ADDR, several(Ok(value.lines().map(str::to_owned).collect()))?),
        };
        Some(FromLauncher { key, value, variable })
    };
    valued().filter_map(one).collect()
}

/// The first of several hosts. One alone need not be named: its ranks meet there by loopback.
fn several(hosts: Result<Vec<String>, String>) -> Option<Result<String, String>> {
    match hosts {
        Ok(hosts) if hosts.len() < 2 => None,
        Ok(hosts) => hosts.into_iter().next().map(Ok),
        Err(problem) => Some(Err(format!("it is not a list of hosts: {problem}"))),
    }
}

fn times(nodes: &str, per_node: u64) -> Result<String, String> {
    match nodes.parse::<u64>() {
        Ok(nodes) => Ok(nodes.saturating_mul(per_node).to_string()),
        Err(_) => {
            Err(format!("`{nodes}` is not a number of machines; it has to be settled before the start"))
        }
    }
}

fn rank_on_node(node: &str, per_node: u64, local: Option<&str>) -> Result<String, String> {
    let Ok(number) = node.parse::<u64>() else {
        return Err(format!("`{node}` is not the number of a machine"));
    };
    if per_node == 1 {
        return Ok(number.to_string());
    }
    match local.map(|local| local.trim().parse::<u64>()) {
        Some(Ok(local)) if local < per_node => Ok((number * per_node + local).to_string()),
        _ => Err(format!(
            "each machine has {per_node} ranks, and LOCAL_RANK does not say which of them this is: 0 to {}",
            per_node - 1
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(env: &[(&str, &str)]) -> String {
        let value_of = |name: &str| env.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let one = |told: FromLauncher| {
            format!("{}={}", told.key, told.value.unwrap_or_else(|why| format!("({why})")))
        };
        told(value_of).into_iter().map(one).collect::<Vec<_>>().join(" ").replace("cluster.", "")
    }

    #[test]
    fn slurms_master_is_the_first_host_of_the_step_and_nobody_where_there_is_one() {
        let slurm = |nodes| {
            values(&[
                ("SLURM_PROCID", "3"),
                ("SLURM_NTASKS", "4"),
                ("SLURM_LOCALID", "1"),
                ("SLURM_STEP_NODELIST", nodes),
                ("SLURM_LAUNCH_NODE_IPADDR", "10.9.9.9"),
            ])
        };
        assert_eq!(slurm("n[3-4,7]"), "rank=3 world_size=4 local_rank=1 master_addr=n3");
        assert_eq!(slurm("n3"), "rank=3 world_size=4 local_rank=1");
        assert_eq!(
            slurm("n[3"),
            "rank=3 world_size=4 local_rank=1 master_addr=(it is not a list of hosts: its brackets do not match)"
        );
    }

    #[test]
    fn an_indexed_job_tells_the_rank_alone() {
        assert_eq!(values(&[("JOB_COMPLETION_INDEX", "2")]), "rank=2");
    }

    #[test]
    fn kubeflows_nodes_have_one_rank_each_or_as_many_as_they_say() {
        let pet = |per_node, local: &'static str| {
            values(&[
                ("JOB_COMPLETION_INDEX", "9"),
                ("PET_NODE_RANK", "1"),
                ("PET_NNODES", "3"),
                ("PET_NPROC_PER_NODE", per_node),
                ("PET_MASTER_ADDR", "job-node-0-0.job"),
                ("PET_MASTER_PORT", "29400"),
                ("LOCAL_RANK", local),
            ])
        };
        let master = "master_addr=job-node-0-0.job master_port=29400";
        assert_eq!(pet("1", ""), format!("rank=1 world_size=3 {master}"));
        assert_eq!(pet("auto", ""), format!("rank=1 world_size=3 {master}"));
        assert_eq!(pet("4", "2"), format!("rank=6 world_size=12 {master}"));
        let which =
            "rank=(each machine has 4 ranks, and LOCAL_RANK does not say which of them this is: 0 to 3)";
        assert_eq!(pet("4", ""), format!("{which} world_size=12 {master}"));
        assert_eq!(pet("4", "4"), format!("{which} world_size=12 {master}"));
    }

    #[test]
    fn an_elastic_number_of_nodes_is_refused() {
        assert_eq!(
            values(&[("PET_NODE_RANK", "0"), ("PET_NNODES", "1:4")]),
            "rank=0 world_size=(`1:4` is not a number of machines; it has to be settled before the start)"
        );
    }

    #[test]
    fn skypilots_master_is_the_first_address() {
        let sky = |ips| {
            values(&[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "2"), ("SKYPILOT_NODE_IPS", ips)])
        };
        assert_eq!(sky("10.0.0.4\n10.0.0.5\n"), "rank=1 world_size=2 master_addr=10.0.0.4");
        assert_eq!(sky("10.0.0.4"), "rank=1 world_size=2");
    }

    #[test]
    fn the_nearest_launcher_counts() {
        let env = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
            ("JOB_COMPLETION_INDEX", "0"),
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
        ];
        assert_eq!(values(&env), "rank=1 world_size=4");
        assert_eq!(values(&[("LOCAL_RANK", "1"), ("HOME", "/root")]), "");
    }
}
