#ifndef HEADRACE_LOADER_CONTROL_TESTING_CERTIFICATES_H_
#define HEADRACE_LOADER_CONTROL_TESTING_CERTIFICATES_H_

// Test only. Certificate authorities and certificates, made when they are asked for.

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace headrace::testing {

struct CertificateFiles {
  std::string certificate;
  std::string key;
};

// Files go into `folder` and stay there. Aborts when OpenSSL fails.
class CertificateAuthority {
 public:
  // `name` is also the stem of its files' names.
  CertificateAuthority(std::string folder, std::string name);
  ~CertificateAuthority();

  const std::string& file() const { return file_; }
  // For these host names and addresses; valid from `from` to `to`, counted from now.
  CertificateFiles Issue(const std::string& name, const std::vector<std::string>& hosts,
                         absl::Duration from = -absl::Hours(1), absl::Duration to = absl::Hours(1)) const;

  // The same key, encrypted; its file.
  std::string EncryptedKey(const CertificateFiles& files, const std::string& passphrase) const;

 private:
  struct Pair;
  const std::string folder_, name_, file_;
  const std::unique_ptr<Pair> own_;
};

}  // namespace headrace::testing

#endif  // HEADRACE_LOADER_CONTROL_TESTING_CERTIFICATES_H_
