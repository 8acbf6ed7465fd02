#ifndef HEADRACE_LOADER_CONTROL_TLS_H_
#define HEADRACE_LOADER_CONTROL_TLS_H_

// TLS of the control service. All credentials are PEM files, read once when the service starts or the client connects:
// a key then never travels through arguments, JSON or a language binding.
//
// The server proves who it is by a certificate of the client's CA for the host to which the client connects. With a
// client CA the server also demands a certificate of each member (mutual TLS). The job's token is needed all the same:
// a certificate says which machine it is, the token that it belongs to this job. TLS 1.2 or later.

#include <string>

#include "absl/status/statusor.h"

namespace headrace {

struct ServerTls {
  std::string certificate_file;  // the server's own, then any intermediate ones
  std::string key_file;          // its private key, not encrypted
  std::string client_ca_file;    // empty: members need no certificate
};

struct ClientTls {
  std::string ca_file;           // whose certificates are believed; nobody else's are
  std::string certificate_file;  // this member's own and its key, where the server demands one; both or neither
  std::string key_file;
  std::string server_name;  // the name or address in the server's certificate; empty: the host that is connected to
};

// The files' contents.
struct PemFiles {
  std::string ca;
  std::string certificate;
  std::string key;
};

// Reads and checks the files, so that a wrong one is named here and not found out at some later handshake. kIo: one
// cannot be read. kInvalidOption: one holds no certificate or no usable key, the key is not the certificate's, the
// certificate has expired, or a needed one is not given.
absl::StatusOr<PemFiles> ReadPem(const ServerTls& tls);
absl::StatusOr<PemFiles> ReadPem(const ClientTls& tls);

}  // namespace headrace

#endif  // HEADRACE_LOADER_CONTROL_TLS_H_
