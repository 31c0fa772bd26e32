//! Addresses as people write them: `rdma://HOST:PORT`, `shm://NAME`. They choose the fabric.

use super::Endpoint;
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

/// An address, parsed but not yet looked up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Url {
    /// A host (a name or an IP address) and a port.
    Rdma {
        /// Name or IP address, IPv6 without brackets.
        host: String,
        /// Port of the RDMA connection manager.
        port: u16,
    },
    /// A name on this host.
    Shm(String),
}

/// What is wrong with an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// No or another scheme.
    #[error("{0:?} has no scheme that spinwire knows: write rdma://HOST:PORT or shm://NAME")]
    Scheme(String),
    /// No port.
    #[error("{0:?} has no port: write rdma://HOST:PORT, such as rdma://10.0.0.1:7471")]
    Port(String),
    /// No host.
    #[error("{0:?} has no host: write rdma://HOST:PORT, with an IPv6 address in brackets")]
    Host(String),
    /// A name that is no name.
    #[error("{0:?} is no name for shared memory: 1 to 64 letters, digits, '-', '_' or '.'")]
    Name(String),
}

/// Longest host name (RFC 1035), and more than any address.
const HOST_MAX: usize = 255;
const NAME_MAX: usize = 64;

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        if let Some(rest) = text.strip_prefix("rdma://") {
            return parse_rdma(text, rest.strip_suffix('/').unwrap_or(rest));
        }
        if let Some(name) = text.strip_prefix("shm://") {
            let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
            let fits = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(plain);
            return if fits && !name.starts_with('.') {
                Ok(Self::Shm(name.into()))
            } else {
                Err(UrlError::Name(text.into()))
            };
        }
        Err(UrlError::Scheme(text.into()))
    }
}

fn parse_rdma(text: &str, rest: &str) -> Result<Url, UrlError> {
    let (host, port) = rest
        .rsplit_once(':')
        .ok_or_else(|| UrlError::Port(text.into()))?;
    if host.starts_with('[') != host.ends_with(']') {
        return Err(UrlError::Port(text.into()));
    }
    let digits = !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit());
    let port = port
        .parse()
        .ok()
        .filter(|_| digits)
        .ok_or_else(|| UrlError::Port(text.into()))?;
    let bare = |h: &str| !h.is_empty() && h.len() <= HOST_MAX;
    let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
        // A zone, as in fe80::1%eth0, is looked up with the address.
        Some(v6)
            if v6
                .split('%')
                .next()
                .is_some_and(|a| a.parse::<Ipv6Addr>().is_ok()) =>
        {
            v6
        }
        None if bare(host)
            && !host.contains([':', '/', '[', ']', '@', '%', ' '])
            && host.chars().all(|c| !c.is_control()) =>
        {
            host
        }
        _ => return Err(UrlError::Host(text.into())),
    };
    Ok(Url::Rdma {
        host: host.into(),
        port,
    })
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rdma { host, port } if host.contains(':') => write!(f, "rdma://[{host}]:{port}"),
            Self::Rdma { host, port } => write!(f, "rdma://{host}:{port}"),
            Self::Shm(name) => write!(f, "shm://{name}"),
        }
    }
}

impl Url {
    /// Looks the host up; blocks while a resolver is asked. Never empty.
    ///
    /// # Errors
    /// The name has no address.
    pub fn resolve(&self) -> io::Result<Vec<Endpoint>> {
        match self {
            Self::Shm(name) => Ok(vec![Endpoint::Shm(name.clone())]),
            Self::Rdma { host, port } => {
                if let Ok(ip) = host.parse::<IpAddr>() {
                    return Ok(vec![Endpoint::Rdma(SocketAddr::new(ip, *port))]);
                }
                let found: Vec<Endpoint> = (host.as_str(), *port)
                    .to_socket_addrs()?
                    .map(Endpoint::Rdma)
                    .collect();
                if found.is_empty() {
                    return Err(io::Error::new(
                        io::ErrorKind::NotFound,
                        "the name has no address",
                    ));
                }
                Ok(found)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rdma(host: &str, port: u16) -> Result<Url, UrlError> {
        Ok(Url::Rdma {
            host: host.into(),
            port,
        })
    }

    #[test]
    fn good_addresses() {
        assert_eq!("rdma://10.0.0.1:7471".parse(), rdma("10.0.0.1", 7471));
        assert_eq!(
            "rdma://node-7.storage:1/".parse(),
            rdma("node-7.storage", 1)
        );
        assert_eq!(
            "rdma://[2001:db8::1]:65535".parse(),
            rdma("2001:db8::1", 65535)
        );
        assert_eq!("rdma://[fe80::1%eth0]:5".parse(), rdma("fe80::1%eth0", 5));
        assert_eq!("shm://node".parse(), Ok(Url::Shm("node".into())));
    }

    #[test]
    fn bad_addresses_are_named() {
        for text in ["10.0.0.1:7471", "tcp://h:1", "", "rdma:/h:1"] {
            assert_eq!(text.parse::<Url>(), Err(UrlError::Scheme(text.into())));
        }
        for text in [
            "rdma://h",
            "rdma://h:",
            "rdma://h:70000",
            "rdma://h:+1",
            "rdma://h:x",
        ] {
            assert_eq!(text.parse::<Url>(), Err(UrlError::Port(text.into())));
        }
        for text in [
            "rdma://:1",
            "rdma://a b:1",
            "rdma://[zz]:1",
            "rdma://::1:5",
            "rdma://a/b:1",
        ] {
            assert_eq!(text.parse::<Url>(), Err(UrlError::Host(text.into())));
        }
        for text in ["shm://", "shm://a/b", "shm://..", "shm://.hidden"] {
            assert_eq!(text.parse::<Url>(), Err(UrlError::Name(text.into())));
        }
    }

    #[test]
    fn literal_addresses_need_no_resolver() {
        let url: Url = "rdma://[::1]:9".parse().expect("parses");
        let want = Endpoint::Rdma("[::1]:9".parse().expect("an address"));
        assert_eq!(url.resolve().expect("no look-up"), [want]);
    }

    proptest! {
        #[test]
        fn text_never_panics_and_what_parses_prints_the_same(text in ".{0,80}") {
            for text in [text.clone(), format!("rdma://{text}"), format!("shm://{text}")] {
                if let Ok(url) = text.parse::<Url>() {
                    prop_assert_eq!(url.to_string().parse::<Url>(), Ok(url));
                }
            }
        }
    }
}
