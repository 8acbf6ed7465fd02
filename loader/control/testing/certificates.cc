#include "loader/control/testing/certificates.h"

#include <arpa/inet.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"

namespace headrace::testing {
namespace {

void Check(bool ok, const char* what) {
  if (ok) return;
  std::fprintf(stderr, "certificates: %s failed\n", what);
  std::abort();
}

void Extend(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  Check(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value.c_str());
  X509_EXTENSION_free(extension);
}

template <typename Writer>
void WriteFile(const std::string& path, Writer write) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  Check(file != nullptr && write(file) == 1 && std::fclose(file) == 0, path.c_str());
}

}  // namespace

struct CertificateAuthority::Pair {
  // Signed by `issuer`, or by itself.
  Pair(const std::string& name, const Pair* issuer, absl::Duration from, absl::Duration to) {
    certificate = X509_new();
    key = EVP_EC_gen("P-256");
    Check(key != nullptr, "making a key");
    X509_set_version(certificate, 2);
    int64_t serial;
    RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial);
    ASN1_INTEGER_set_int64(X509_get_serialNumber(certificate), serial & INT64_MAX);
    X509_gmtime_adj(X509_getm_notBefore(certificate), absl::ToInt64Seconds(from));
    X509_gmtime_adj(X509_getm_notAfter(certificate), absl::ToInt64Seconds(to));
    X509_set_pubkey(certificate, key);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    X509_set_issuer_name(certificate, X509_get_subject_name(issuer == nullptr ? certificate : issuer->certificate));
  }
  ~Pair() {
    X509_free(certificate);
    EVP_PKEY_free(key);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  X509* certificate = nullptr;
  EVP_PKEY* key = nullptr;
};

CertificateAuthority::CertificateAuthority(std::string folder, std::string name)
    : folder_(std::move(folder)),
      name_(std::move(name)),
      file_(absl::StrCat(folder_, "/", name_, ".crt")),
      own_(std::make_unique<Pair>(name_, nullptr, -absl::Hours(2), absl::Hours(2))) {
  Extend(own_->certificate, own_->certificate, NID_basic_constraints, "critical,CA:TRUE");
  Check(X509_sign(own_->certificate, own_->key, EVP_sha256()) != 0, "signing");
  WriteFile(file_, [this](std::FILE* file) { return PEM_write_X509(file, own_->certificate); });
}

CertificateAuthority::~CertificateAuthority() = default;

CertificateFiles CertificateAuthority::Issue(const std::string& name, const std::vector<std::string>& hosts,
                                             absl::Duration from, absl::Duration to) const {
  const Pair pair(name, own_.get(), from, to);
  std::string names;
  for (const std::string& host : hosts) {
    in6_addr unused;
    const bool address =
        inet_pton(AF_INET, host.c_str(), &unused) == 1 || inet_pton(AF_INET6, host.c_str(), &unused) == 1;
    absl::StrAppend(&names, names.empty() ? "" : ",", address ? "IP:" : "DNS:", host);
  }
  if (!names.empty()) Extend(pair.certificate, own_->certificate, NID_subject_alt_name, names);
  Check(X509_sign(pair.certificate, own_->key, EVP_sha256()) != 0, "signing");
  const CertificateFiles files{absl::StrCat(folder_, "/", name_, "-", name, ".crt"),
                               absl::StrCat(folder_, "/", name_, "-", name, ".key")};
  WriteFile(files.certificate, [&](std::FILE* file) { return PEM_write_X509(file, pair.certificate); });
  WriteFile(files.key, [&](std::FILE* file) {
    return PEM_write_PrivateKey(file, pair.key, nullptr, nullptr, 0, nullptr, nullptr);
  });
  return files;
}

std::string CertificateAuthority::EncryptedKey(const CertificateFiles& files, const std::string& passphrase) const {
  std::FILE* file = std::fopen(files.key.c_str(), "r");
  Check(file != nullptr, files.key.c_str());
  EVP_PKEY* key = PEM_read_PrivateKey(file, nullptr, nullptr, nullptr);
  std::fclose(file);
  Check(key != nullptr, "reading a key");
  const std::string path = absl::StrCat(files.key, ".encrypted");
  WriteFile(path, [&](std::FILE* out) {
    return PEM_write_PrivateKey(out, key, EVP_aes_128_cbc(), reinterpret_cast<const unsigned char*>(passphrase.data()),
                                static_cast<int>(passphrase.size()), nullptr, nullptr);
  });
  EVP_PKEY_free(key);
  return path;
}

}  // namespace headrace::testing
