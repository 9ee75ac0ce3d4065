//! The plan for a person's eyes: plain text, aligned, no wider than a terminal where names allow.

use std::fmt;
use std::path::Path;

use super::super::shards::{Cut, RowLife};
use super::super::validated::Placement;
use super::{DevicePlan, Link, ModulePlan, Plan, RangePlan, RolePlan, ShardPlan, Wire};
use crate::human::{bytes, counted, thousands};
use crate::topology::Rank;

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "job {}", self.job)?;
        writeln!(f, "  {}", self.training())?;
        writeln!(f, "\nroles, {}", counted(u64::from(self.world_size), "rank"))?;
        let mut roles = Grid::new(&[Left, Right, Left, Left]);
        for role in &self.roles {
            roles.row(role_row(role));
        }
        roles.write(f)?;
        if let Some(graph) = &self.graph {
            write!(f, "\n\n{graph}")?;
        }
        for module in &self.modules {
            show_module(f, module)?;
        }
        self.show_links(f)?;
        write!(f, "\n\n{}", self.optimized)?;
        if let Some(pipeline) = &self.pipeline {
            write!(f, "\n\n{pipeline}")?;
        }
        for (number, note) in self.notes.iter().enumerate() {
            write!(f, "{}note: {note}", if number == 0 { "\n\n" } else { "\n" })?;
        }
        Ok(())
    }
}

impl Plan {
    fn training(&self) -> String {
        let length = match self.steps {
            0 => counted(u64::from(self.epochs), "epoch"),
            steps => format!("{} of each trainer at most", counted(steps, "step")),
        };
        let consistency = self.consistency;
        let trainers = counted(self.trainers as u64, "trainer");
        let batches = match self.accumulate {
            1 => format!("batches of {}", self.batch_size),
            count => format!("{count} batches of {} for a step", self.batch_size),
        };
        let local = match self.local_steps {
            1 => String::new(),
            steps => format!(", synchronised after {} steps", thousands(u64::from(steps))),
        };
        format!("{trainers}, {consistency}, {length}, {batches}{local}")
    }

    fn show_links(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\n\nlinks, one step of one trainer")?;
        if self.links.is_empty() {
            return write!(f, "\n  nothing travels: the trainer holds the model itself");
        }
        let mut grid = Grid::new(&[Left, Right, Left]);
        for link in &self.links {
            grid.row(link_row(link));
        }
        let all = super::sum(self.links.iter().map(|link| link.bytes));
        let total = bytes(all.saturating_mul(self.trainers as u64));
        writeln!(f)?;
        grid.write(f)?;
        write!(f, "\n  {total} for a step of all {}", counted(self.trainers as u64, "trainer"))
    }
}

fn role_row(role: &RolePlan) -> Vec<String> {
    let mut does = Vec::new();
    if !role.holds.is_empty() {
        let each = if role.ranks.len() > 1 { " on each" } else { "" };
        let size = match role.parameters.zip(role.parameter_bytes) {
            Some((count, size)) => format!("{} parameters, {}{each}", thousands(count), bytes(size)),
            None => "parameters not known yet".into(),
        };
        does.push(format!("holds {} ({size})", role.holds.join(", ")));
    }
    if role.trains {
        does.push("trains".into());
    }
    if !role.copies.is_empty() {
        let size = role.copy_bytes.map_or("size not known yet".into(), bytes);
        does.push(format!("computes on a copy of {} ({size})", role.copies.join(", ")));
    }
    if role.drives {
        does.push("makes the remote modules, starts the trainers and waits for them".into());
    }
    let count = counted(role.ranks.len() as u64, "rank");
    vec![role.name.clone(), count, rank_range(&role.ranks), does.join(", ")]
}

/// Ranks of a role follow one another.
fn rank_range(ranks: &[Rank]) -> String {
    match ranks {
        [only] => only.to_string(),
        [first, .., last] => format!("{first} to {last}"),
        [] => String::new(),
    }
}

fn counted_range(ranks: &[Rank]) -> String {
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, rank_range(ranks))
}

fn show_module(f: &mut fmt::Formatter<'_>, module: &ModulePlan) -> fmt::Result {
    let ModulePlan { name, role, ranks, inputs, outputs, .. } = module;
    let shown =
        |wires: &[Wire]| wires.iter().map(|wire| wire.signal.to_string()).collect::<Vec<_>>().join(" and ");
    let (inputs, outputs) = (shown(inputs), shown(outputs));
    let frozen = match module.parameters.zip(module.trained_parameters) {
        Some((all, 0)) if all > 0 => ", frozen".to_owned(),
        Some((all, trained)) if trained < all => {
            format!(", {} of its parameters frozen", thousands(all - trained))
        }
        _ => String::new(),
    };
    let on = match module.placement {
        Placement::Remote if ranks.len() > 1 => format!("on each {role} (ranks {})", rank_range(ranks)),
        Placement::Remote => format!("on {role} (rank {})", rank_range(ranks)),
        Placement::Replicas => format!("on each {role} (ranks {})", rank_range(ranks)),
        Placement::Shards(cut) => {
            let by = match cut {
                Cut::Rows => "ranges of rows",
                Cut::Hash => "a hash of the id",
            };
            let life = module.row_life.map_or(String::new(), row_life);
            let ranks_of = if ranks.len() > 1 { "ranks" } else { "rank" };
            format!("cut over {role} ({ranks_of} {}) by {by}{life}", rank_range(ranks))
        }
        Placement::Caller => format!("at the trainers, its parameters on {role} ({})", counted_range(ranks)),
    };
    writeln!(f, "\n\nmodule {name} {on}, {inputs} to {outputs}{frozen}")?;
    match &module.torchscript {
        Some(file) => show_script(f, file, &module.devices)?,
        None => show_layers(f, module)?,
    }
    if !module.shards.is_empty() {
        module.shards.iter().try_for_each(|shard| show_shard(f, shard))?;
        return show_weights(f, module);
    }
    module.devices.iter().try_for_each(|device| show_extras(f, device))?;
    module.ranges.iter().try_for_each(|range| show_range(f, range))?;
    show_weights(f, module)
}

fn row_life(RowLife { admit_after, evict_after }: RowLife) -> String {
    let from = match admit_after {
        1 => String::new(),
        nth => format!(", each row from its sighting {} on", thousands(nth)),
    };
    let to = evict_after.map_or(String::new(), |updates| {
        format!(", dropped when {} have not used it", counted(updates, "update"))
    });
    from + &to
}

fn show_script(f: &mut fmt::Formatter<'_>, file: &Path, devices: &[DevicePlan]) -> fmt::Result {
    write!(f, "  TorchScript, {}", file.display())?;
    devices.iter().try_for_each(|on| {
        let (count, size) = (counted(on.parameters, "parameter"), bytes(on.parameter_bytes));
        write!(f, ": {count}, {size} on {}", on.device)
    })
}

fn show_layers(f: &mut fmt::Formatter<'_>, module: &ModulePlan) -> fmt::Result {
    let mut grid = Grid::new(&[Left, Left, Left, Right, Right, Left]);
    grid.row(["layer", "type", "output", "parameters", "bytes", "device"].map(String::from).to_vec());
    for layer in &module.layers {
        let size = |number: u64, text: String| if number == 0 { String::new() } else { text };
        grid.row(vec![
            layer.name.clone(),
            layer.kind.into(),
            layer.output.to_string(),
            size(layer.parameters, thousands(layer.parameters)),
            size(layer.parameter_bytes, bytes(layer.parameter_bytes)),
            layer.device.to_string(),
        ]);
    }
    // Nobody holds the whole of a table that is cut.
    for device in module.devices.iter().filter(|_| module.shards.is_empty()) {
        let total = [thousands(device.parameters), bytes(device.parameter_bytes), device.device.to_string()];
        grid.row([String::from("together"), String::new(), String::new()].into_iter().chain(total).collect());
    }
    grid.write(f)
}

fn show_weights(f: &mut fmt::Formatter<'_>, module: &ModulePlan) -> fmt::Result {
    match &module.weights {
        Some(file) => write!(f, "\n  starts from {}", file.display()),
        None => Ok(()),
    }
}

fn show_shard(f: &mut fmt::Formatter<'_>, shard: &ShardPlan) -> fmt::Result {
    let ShardPlan { rank, first, rows, parameters, parameter_bytes, optimizer_bytes } = shard;
    let which = match first {
        Some(_) if *rows == 0 => "no row".into(),
        Some(first) => format!("rows {} to {}", thousands(*first), thousands(first + rows - 1)),
        None => format!("at most {}", counted(*rows, "row")),
    };
    let (count, size) = (thousands(*parameters), bytes(*parameter_bytes));
    write!(f, "\n  rank {rank} holds {which}: {count} parameters, {size}")?;
    match optimizer_bytes {
        0 => Ok(()),
        size => write!(f, ", and {} of optimizer state", bytes(*size)),
    }
}

/// What a server holds.
fn show_range(f: &mut fmt::Formatter<'_>, range: &RangePlan) -> fmt::Result {
    let (rank, count, size) =
        (range.rank, counted(range.parameters, "parameter"), bytes(range.parameter_bytes));
    write!(f, "\n  rank {rank} holds {count}, {size}")?;
    let beside =
        [(range.optimizer_bytes, "optimizer state"), (range.shadow_bytes, "copies of what each trainer has")];
    match beside_parameters(&beside) {
        beside if beside.is_empty() => Ok(()),
        beside => write!(f, ", and {beside}"),
    }
}

/// What lies beside the parameters.
fn show_extras(f: &mut fmt::Formatter<'_>, device: &DevicePlan) -> fmt::Result {
    let extras = [(device.optimizer_bytes, "optimizer state"), (device.buffer_bytes, "buffers")];
    match beside_parameters(&extras) {
        extras if extras.is_empty() => Ok(()),
        extras => write!(f, "\n  and on {} {extras}", device.device),
    }
}

/// "15.2 KiB of optimizer state, 208 B of buffers"; empty, where nothing has a size.
fn beside_parameters(sizes: &[(u64, &str)]) -> String {
    let some = sizes.iter().filter(|(size, _)| *size > 0);
    some.map(|(size, what)| format!("{} of {what}", bytes(*size))).collect::<Vec<_>>().join(", ")
}

fn link_row(link: &Link) -> Vec<String> {
    let carries: Vec<_> =
        link.carries.iter().map(|load| format!("{} {}", load.what, bytes(load.bytes))).collect();
    vec![format!("{} to {}", link.from, link.to), bytes(link.bytes), carries.join(", ")]
}

#[derive(Clone, Copy)]
pub(super) enum Align {
    Left,
    Right,
}
use Align::{Left, Right};

/// Rows in columns of equal width.
pub(super) struct Grid<'a> {
    align: &'a [Align],
    rows: Vec<Vec<String>>,
}

impl<'a> Grid<'a> {
    pub(super) fn new(align: &'a [Align]) -> Grid<'a> {
        Grid { align, rows: Vec::new() }
    }

    pub(super) fn row(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// Indented, without a newline behind the last row.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..self.align.len()).map(width).collect();
        for (number, row) in self.rows.iter().enumerate() {
            let mut line = String::new();
            for ((cell, width), align) in row.iter().zip(&widths).zip(self.align) {
                line.push_str("  ");
                line.push_str(&match align {
                    Left => format!("{cell:<width$}"),
                    Right => format!("{cell:>width$}"),
                });
            }
            if number > 0 {
                writeln!(f)?;
            }
            write!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}
