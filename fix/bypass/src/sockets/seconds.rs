//! Second names of connections in an epoll set.
//!
//! The kernel knows what it watches by file and number: a connection that was duplicated can be in one set twice, with
//! other events and other data, and each is told. The first name is the connection's own registration; the others are
//! kept here.

use libc::{EPOLLET, EPOLLONESHOT, c_int, epoll_event};
use std::os::fd::RawFd;

#[derive(Debug)]
struct Second {
    /// The number of the stream.
    stream: u32,
    fd: RawFd,
    events: u32,
    data: u64,
    /// EPOLLONESHOT has fired.
    spent: bool,
}

/// Those of one set.
#[derive(Debug, Default)]
pub struct Seconds {
    all: Vec<Second>,
    /// They have filled all the room there was: next time the first name is told before them.
    resting: bool,
}

impl Seconds {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether a connection has any.
    #[inline]
    pub fn has(&self, stream: u32) -> bool {
        self.all.iter().any(|s| s.stream == stream)
    }

    /// Whether this is one of them.
    pub fn has_name(&self, stream: u32, fd: RawFd) -> bool {
        self.find(stream, fd).is_some()
    }

    fn find(&self, stream: u32, fd: RawFd) -> Option<usize> {
        self.all.iter().position(|s| s.stream == stream && s.fd == fd)
    }

    /// `epoll_ctl`; the kernel's errno where it is refused.
    pub fn change(&mut self, op: c_int, stream: u32, fd: RawFd, event: Option<epoll_event>) -> Result<(), c_int> {
        let at = self.find(stream, fd);
        match (op, at, event) {
            (libc::EPOLL_CTL_DEL, Some(at), _) => _ = self.all.swap_remove(at),
            (libc::EPOLL_CTL_DEL, None, _) => return Err(libc::ENOENT),
            (libc::EPOLL_CTL_ADD | libc::EPOLL_CTL_MOD, _, None) => return Err(libc::EFAULT),
            (libc::EPOLL_CTL_ADD, Some(_), _) => return Err(libc::EEXIST),
            (libc::EPOLL_CTL_MOD, None, _) => return Err(libc::ENOENT),
            (libc::EPOLL_CTL_ADD, None, Some(event)) => {
                self.all.push(Second { stream, fd, events: event.events, data: event.u64, spent: false });
            }
            (libc::EPOLL_CTL_MOD, Some(at), Some(event)) => {
                self.all[at] = Second { stream, fd, events: event.events, data: event.u64, spent: false };
            }
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    /// The connection is in the set no more.
    pub fn forget(&mut self, stream: u32) {
        self.all.retain(|s| s.stream != stream);
    }

    /// Only these connections are in the set still.
    pub fn keep(&mut self, streams: &[u32]) {
        self.all.retain(|s| streams.contains(&s.stream));
    }

    /// Events of a connection's second names into `room`: how many, and whether to look at them again in the next turn.
    pub fn tell(&mut self, stream: u32, ready: impl Fn(u32) -> u32, room: &mut [epoll_event]) -> (usize, bool) {
        if std::mem::take(&mut self.resting) {
            return (0, self.has(stream));
        }
        let (mut n, mut again) = (0, false);
        for second in self.all.iter_mut().filter(|s| s.stream == stream && !s.spent) {
            let events = ready(second.events);
            if events == 0 {
                continue;
            }
            let Some(place) = room.get_mut(n) else {
                again = true;
                break;
            };
            *place = epoll_event { events, u64: second.data };
            n += 1;
            second.spent = second.events & EPOLLONESHOT as u32 != 0;
            again |= second.events & (EPOLLONESHOT | EPOLLET) as u32 == 0;
        }
        self.resting = n > 0 && n == room.len();
        (n, again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, EPOLLIN, EPOLLOUT};

    const NONE: epoll_event = epoll_event { events: 0, u64: 0 };

    fn event(events: c_int, data: u64) -> Option<epoll_event> {
        Some(epoll_event { events: events as u32, u64: data })
    }

    /// Data of those who are told that it can be written to.
    fn told(seconds: &mut Seconds, room: usize) -> (Vec<u64>, bool) {
        let mut events = vec![NONE; room];
        let (n, again) = seconds.tell(7, |wanted| wanted & EPOLLOUT as u32, &mut events);
        (events[..n].iter().map(|e| e.u64).collect(), again)
    }

    #[test]
    fn each_name_has_its_own_events() {
        let mut seconds = Seconds::default();
        seconds.change(EPOLL_CTL_ADD, 7, 5, event(EPOLLIN, 50)).unwrap();
        seconds.change(EPOLL_CTL_ADD, 7, 6, event(EPOLLOUT, 60)).unwrap();
        seconds.change(EPOLL_CTL_ADD, 8, 9, event(EPOLLOUT, 90)).unwrap();
        assert_eq!(told(&mut seconds, 4), (vec![60], true));
        seconds.change(EPOLL_CTL_MOD, 7, 5, event(EPOLLOUT | EPOLLONESHOT, 51)).unwrap();
        assert_eq!(told(&mut seconds, 4), (vec![51, 60], true));
        assert_eq!(told(&mut seconds, 4), (vec![60], true), "one shot");
        seconds.change(EPOLL_CTL_MOD, 7, 6, event(EPOLLOUT | EPOLLET, 61)).unwrap();
        assert_eq!(told(&mut seconds, 4), (vec![61], false), "told again when there is news");
        seconds.forget(7);
        assert!(!seconds.has(7) && seconds.has(8));
    }

    #[test]
    fn changes_are_refused_as_the_kernel_refuses_them() {
        let mut seconds = Seconds::default();
        let mut change = |op, fd, event| seconds.change(op, 7, fd, event);
        assert_eq!(change(EPOLL_CTL_DEL, 5, None), Err(libc::ENOENT));
        assert_eq!(change(EPOLL_CTL_MOD, 5, event(EPOLLIN, 1)), Err(libc::ENOENT));
        assert_eq!(change(EPOLL_CTL_ADD, 5, None), Err(libc::EFAULT));
        assert_eq!(change(EPOLL_CTL_ADD, 5, event(EPOLLIN, 1)), Ok(()));
        assert_eq!(change(EPOLL_CTL_ADD, 5, event(EPOLLIN, 1)), Err(libc::EEXIST));
        assert_eq!(change(EPOLL_CTL_DEL, 5, None), Ok(()));
        assert_eq!(change(9, 5, event(EPOLLIN, 1)), Err(libc::EINVAL));
    }

    #[test]
    fn little_room_is_shared_with_the_first_name() {
        let mut seconds = Seconds::default();
        seconds.change(EPOLL_CTL_ADD, 7, 6, event(EPOLLOUT, 60)).unwrap();
        assert_eq!(told(&mut seconds, 1), (vec![60], true));
        assert_eq!(told(&mut seconds, 1), (vec![], true), "the first name's turn");
        assert_eq!(told(&mut seconds, 1), (vec![60], true));
    }
}
