//! Where calls go: the watcher's news become routes for the writer, and what happens when the watcher dies.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;

use unslow_client::{Target, address_target};
use unslow_reactor::{Waker, peer_of, tls_of};
use unslow_topology::{Health, Topology};
use unslow_watch::News;

use crate::error::Error;
use crate::writer::{Order, Reach, Route, WriterShared};

/// How the threads of a sink know of its end.
#[derive(Default)]
pub struct Stop {
    /// Reads no more, and finishes what is in flight.
    pub asked: AtomicBool,
    /// It is dropped.
    pub over: AtomicBool,
    /// Some slots have no master that answers.
    pub silent: AtomicBool,
    /// It was asked since its watcher had died.
    unwatched: AtomicBool,
}

impl Stop {
    /// Whether it was asked for a reason that is an error.
    pub fn why(&self) -> Result<(), Error> {
        if self.unwatched.load(Ordering::Acquire) { Err(Error::Unwatched) } else { Ok(()) }
    }
}

/// The watcher's news become routes.
pub struct Routes {
    pub shared: Arc<WriterShared>,
    pub waker: Waker,
    pub stop: Arc<Stop>,
    pub note: Arc<dyn Fn(&str) + Send + Sync>,
    pub router: Router,
}

impl Routes {
    /// Until the watcher ends. If nothing has ended it, the routes would only age from here on: the sink finishes
    /// what is in flight and ends with an error, so that its service manager starts it again.
    pub fn follow(&self, news: Receiver<News>) {
        for news in news {
            match news {
                News::Delta(delta, topology) => {
                    delta.changes.iter().for_each(|known| (self.note)(&known.what.to_string()));
                    let silent = topology.masters().any(|n| n.health != Health::Up);
                    self.stop.silent.store(silent, Ordering::Release);
                    self.route(&topology);
                }
                News::Note(text) => (self.note)(&text),
                // The same again: a redirect may have led astray.
                News::Fresh(topology) => self.route(&topology),
            }
        }
        if self.stop.over.load(Ordering::Acquire) {
            return;
        }
        (self.note)(&format!("{}; finishing batches in flight", Error::Unwatched));
        self.stop.unwatched.store(true, Ordering::Release);
        self.stop.asked.store(true, Ordering::Release);
    }

    fn route(&self, topology: &Topology) {
        self.shared.order(Order::Route(self.router.route(topology)), &self.waker);
    }
}

/// Makes routes of what a watcher has seen.
pub struct Router {
    pub target: Target,
    pub tls: Option<Arc<rustls::ClientConfig>>,
    pub server_name: Option<String>,
}

impl Router {
    pub fn route(&self, topology: &Topology) -> Route {
        let reach = topology.nodes.iter().map(|node| {
            let target = address_target(&self.target, &node.address).unwrap_or_else(|| self.target.clone());
            let tls = tls_of(&target, self.tls.as_ref(), self.server_name.as_deref());
            // Never in the clear where TLS was asked for.
            Reach { peer: peer_of(&target).filter(|_| !target.tls || tls.is_some()), tls }
        });
        Route { topology: topology.clone(), reach: reach.collect() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{Sender, channel};

    use unslow_reactor::Reactor;

    use super::*;
    use crate::stats::Stats;

    #[test]
    fn a_watcher_that_dies_ends_the_sink_with_an_error_and_one_that_was_ended_does_not() {
        for over in [false, true] {
            let shared = Arc::new(WriterShared {
                orders: Mutex::default(),
                window: Default::default(),
                stats: Stats::default(),
                fatal: Mutex::default(),
            });
            let stop = Arc::new(Stop::default());
            stop.over.store(over, Ordering::Release);
            let notes = Arc::new(Mutex::new(Vec::<String>::new()));
            let noted = notes.clone();
            let routes = Routes {
                shared,
                waker: Reactor::new().unwrap().io().waker(),
                stop: stop.clone(),
                note: Arc::new(move |text: &str| noted.lock().unwrap().push(text.into())),
                router: Router { target: Target::parse("redis://h:1").unwrap(), tls: None, server_name: None },
            };
            let (send, news) = channel();
            drop::<Sender<News>>(send); // as the watcher's thread does at its end
            routes.follow(news);
            let unwatched = matches!(stop.why(), Err(Error::Unwatched));
            assert_eq!((stop.asked.load(Ordering::Acquire), unwatched), (!over, !over));
            assert_eq!(notes.lock().unwrap().len(), usize::from(!over));
        }
    }
}
