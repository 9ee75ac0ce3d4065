//! Colours and letters, as far as the terminal takes them. Nothing is told by colour alone.

use ratatui::style::{Color, Modifier, Style};
use ratatui::symbols::Marker;

use crate::profile::Activity;

#[derive(Clone, Copy, Debug)]
pub struct Paint {
    pub color: bool,
    /// More than ASCII.
    pub unicode: bool,
}

impl Paint {
    fn colored(self, color: Color) -> Style {
        if self.color { Style::new().fg(color) } else { Style::new() }
    }

    pub fn head(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// What is read last.
    pub fn quiet(self) -> Style {
        self.colored(Color::DarkGray)
    }

    pub fn warning(self) -> Style {
        self.colored(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    pub fn error(self) -> Style {
        self.colored(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Curves: that of the training, and others beside it.
    pub fn curve(self, nth: usize) -> Style {
        let colors = [Color::Cyan, Color::Green, Color::Magenta, Color::Yellow, Color::Blue, Color::Red];
        self.colored(colors[nth % colors.len()])
    }

    pub fn validation(self) -> Style {
        self.colored(Color::Yellow).add_modifier(Modifier::BOLD)
    }

    /// Readable on light and on dark: letters keep the terminal's own colour, and what is behind them is changed where the
    /// letter is one of these.
    pub fn activity(self, activity: Activity) -> Style {
        self.colored(match activity {
            Activity::Data => Color::Magenta,
            Activity::Payload => Color::Blue,
            Activity::Forward => Color::Green,
            Activity::Loss => Color::Red,
            Activity::Backward => Color::Cyan,
            Activity::Exchange => Color::LightRed,
            Activity::Step => Color::Yellow,
            Activity::Wait => Color::DarkGray,
        })
    }

    pub fn line_marker(self) -> Marker {
        if self.unicode { Marker::Braille } else { Marker::Custom('*') }
    }

    /// Between parts of a line.
    pub fn dot(self) -> &'static str {
        if self.unicode { " · " } else { " | " }
    }
}

/// The letter of an activity, in bars.
pub fn letter(activity: Activity) -> char {
    match activity {
        Activity::Data => 'D',
        Activity::Payload => 'P',
        Activity::Forward => 'F',
        Activity::Loss => 'L',
        Activity::Backward => 'B',
        Activity::Exchange => 'X',
        Activity::Step => 'S',
        Activity::Wait => '.',
    }
}

/// What the letters mean.
pub const LEGEND: &str = "D data  P payload  F forward  L loss  B backward  X exchange  S step  . wait";
