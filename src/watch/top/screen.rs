//! What the keys have chosen. Pure.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pane {
    #[default]
    Overview,
    Loss,
    Trainers,
    Ranks,
    Links,
    Messages,
}

impl Pane {
    pub const ALL: [Pane; 6] =
        [Pane::Overview, Pane::Loss, Pane::Trainers, Pane::Ranks, Pane::Links, Pane::Messages];

    pub fn name(self) -> &'static str {
        match self {
            Pane::Overview => "Overview",
            Pane::Loss => "Loss",
            Pane::Trainers => "Trainers",
            Pane::Ranks => "Ranks",
            Pane::Links => "Links",
            Pane::Messages => "Messages",
        }
    }

    fn beside(self, by: usize) -> Pane {
        let at = Pane::ALL.iter().position(|pane| *pane == self).unwrap_or(0);
        Pane::ALL[(at + by) % Pane::ALL.len()]
    }
}

/// The state of the screen, beside what is known of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    pub pane: Pane,
    /// Lines that are scrolled over, of those panes that have more than fit. Drawing keeps it within them.
    pub scrolled: usize,
    pub log: bool,
    /// Each trainer's curve, not the mean.
    pub each: bool,
    pub paused: bool,
    pub help: bool,
}

/// What a key asks of whoever runs the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    Nothing,
    Quit,
}

/// Lines of a page.
const PAGE: usize = 10;

pub const KEYS: [(&str, &str); 9] = [
    ("q, Esc, Ctrl-C", "leave; the run goes on"),
    ("Tab, right / left", "the next pane, the one before"),
    ("1 to 6", "a pane by its number"),
    ("up, down, PgUp, PgDn", "scroll what is longer than the pane"),
    ("Home", "back to its first line"),
    ("space", "hold still, and go on"),
    ("l", "a logarithmic axis for the loss"),
    ("c", "each trainer's curve, or their mean"),
    ("?", "this help"),
];

impl Screen {
    pub fn key(&mut self, key: KeyEvent) -> Asked {
        if key.kind == KeyEventKind::Release {
            return Asked::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Asked::Quit,
            KeyCode::Esc if self.help => self.help = false,
            KeyCode::Char('q') | KeyCode::Esc => return Asked::Quit,
            KeyCode::Tab | KeyCode::Right => self.show(self.pane.beside(1)),
            KeyCode::BackTab | KeyCode::Left => self.show(self.pane.beside(Pane::ALL.len() - 1)),
            KeyCode::Char(digit @ '1'..='6') => self.show(Pane::ALL[digit as usize - '1' as usize]),
            KeyCode::Up | KeyCode::Char('k') => self.scrolled = self.scrolled.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.scrolled += 1,
            KeyCode::PageUp => self.scrolled = self.scrolled.saturating_sub(PAGE),
            KeyCode::PageDown => self.scrolled += PAGE,
            KeyCode::Home => self.scrolled = 0,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('l') => self.log = !self.log,
            KeyCode::Char('c') => self.each = !self.each,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            _ => {}
        }
        Asked::Nothing
    }

    fn show(&mut self, pane: Pane) {
        (self.pane, self.scrolled) = (pane, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(screen: &mut Screen, code: KeyCode) -> Asked {
        screen.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn tab_goes_around_all_panes_and_back_tab_the_other_way() {
        let mut screen = Screen::default();
        let forward = Pane::ALL.map(|_| {
            press(&mut screen, KeyCode::Tab);
            screen.pane
        });
        assert_eq!(forward[0], Pane::Loss);
        assert_eq!(forward[5], Pane::Overview);
        press(&mut screen, KeyCode::Left);
        assert_eq!(screen.pane, Pane::Messages);
        press(&mut screen, KeyCode::Char('4'));
        assert_eq!(screen.pane, Pane::Ranks);
    }

    #[test]
    fn escape_closes_the_help_before_it_leaves() {
        let mut screen = Screen::default();
        press(&mut screen, KeyCode::Char('?'));
        assert!(screen.help);
        assert_eq!(press(&mut screen, KeyCode::Esc), Asked::Nothing);
        assert!(!screen.help);
        assert_eq!(press(&mut screen, KeyCode::Esc), Asked::Quit);
        assert_eq!(screen.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Asked::Quit);
        assert_eq!(press(&mut screen, KeyCode::Char('c')), Asked::Nothing);
    }
}
