#include "loader/control/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "planner/status.h"

namespace headrace {
namespace {

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* value) const {
    Free(value);
  }
};
using Bio = std::unique_ptr<BIO, Freer<BIO_free>>;
using Certificate = std::unique_ptr<X509, Freer<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY_free>>;

Bio Open(const std::string& pem) { return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

// Without it OpenSSL would ask for a passphrase on the terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

absl::StatusOr<std::string> Read(const std::string& path) {
  const auto failed = [&] {
    return Error(ErrorCode::kIo, absl::StrCat("TLS: cannot read ", path, ": ", std::strerror(errno)));
  };
  const std::unique_ptr<std::FILE, Freer<std::fclose>> file(std::fopen(path.c_str(), "re"));
  if (file == nullptr) return failed();
  std::string text;
  char part[4096];
  while (const size_t size = std::fread(part, 1, sizeof part, file.get())) text.append(part, size);
  if (std::ferror(file.get()) != 0) return failed();
  return text;
}

absl::StatusOr<Certificate> FirstCertificate(const std::string& pem, const std::string& path) {
  Certificate certificate(PEM_read_bio_X509(Open(pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (certificate == nullptr)
    return Error(ErrorCode::kInvalidOption, absl::StrCat("TLS: ", path, " holds no PEM certificate"));
  return certificate;
}

absl::Status ReadCa(const std::string& path, PemFiles* pem) {
  HR_ASSIGN_OR_RETURN(pem->ca, Read(path));
  return FirstCertificate(pem->ca, path).status();
}

absl::Status ReadOwn(const std::string& certificate_path, const std::string& key_path, PemFiles* pem) {
  HR_ASSIGN_OR_RETURN(pem->certificate, Read(certificate_path));
  HR_ASSIGN_OR_RETURN(Certificate certificate, FirstCertificate(pem->certificate, certificate_path));
  HR_ASSIGN_OR_RETURN(pem->key, Read(key_path));
  const Key key(PEM_read_bio_PrivateKey(Open(pem->key).get(), nullptr, NoPassphrase, nullptr));
  const bool match = key != nullptr && X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("TLS: ", key_path, " holds no PEM private key that can be used without a passphrase"));
  if (!match)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("TLS: the key in ", key_path, " is not that of the certificate in ", certificate_path));
  if (X509_cmp_current_time(X509_get0_notAfter(certificate.get())) < 0)
    return Error(ErrorCode::kInvalidOption,
                 absl::StrCat("TLS: the certificate in ", certificate_path, " has expired; have it renewed"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<PemFiles> ReadPem(const ServerTls& tls) {
  if (tls.certificate_file.empty() || tls.key_file.empty())
    return Error(ErrorCode::kInvalidOption, "TLS: the coordinator needs a certificate file and a key file");
  PemFiles pem;
  HR_RETURN_IF_ERROR(ReadOwn(tls.certificate_file, tls.key_file, &pem));
  if (!tls.client_ca_file.empty()) HR_RETURN_IF_ERROR(ReadCa(tls.client_ca_file, &pem));
  return pem;
}

absl::StatusOr<PemFiles> ReadPem(const ClientTls& tls) {
  if (tls.ca_file.empty())
    return Error(ErrorCode::kInvalidOption, "TLS: a member needs the CA file by which it knows the coordinator");
  if (tls.certificate_file.empty() != tls.key_file.empty())
    return Error(ErrorCode::kInvalidOption, "TLS: a member's certificate file and key file come together");
  PemFiles pem;
  HR_RETURN_IF_ERROR(ReadCa(tls.ca_file, &pem));
  if (!tls.certificate_file.empty()) HR_RETURN_IF_ERROR(ReadOwn(tls.certificate_file, tls.key_file, &pem));
  return pem;
}

}  // namespace headrace
