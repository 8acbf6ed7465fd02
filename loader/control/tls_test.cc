#include "loader/control/tls.h"

#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "loader/control/testing/certificates.h"
#include "planner/status.h"

namespace headrace {
namespace {

using testing::CertificateAuthority;
using testing::CertificateFiles;
using ::testing::HasSubstr;

std::string Contents(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class TlsTest : public ::testing::Test {
 protected:
  // Expects `code`, and the message to name `what`.
  template <typename Tls>
  void ExpectError(const Tls& tls, ErrorCode code, const std::string& what) {
    const absl::Status status = ReadPem(tls).status();
    EXPECT_TRUE(HasCode(status, code)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  ServerTls Server(const std::string& certificate, const std::string& key, const std::string& ca = "") {
    return {.certificate_file = certificate, .key_file = key, .client_ca_file = ca};
  }
  ClientTls Client(const std::string& ca, const std::string& certificate = "", const std::string& key = "") {
    return {.ca_file = ca, .certificate_file = certificate, .key_file = key, .server_name = ""};
  }
  std::string Write(const std::string& name, const std::string& contents) {
    const std::string path = absl::StrCat(folder_, "/", name);
    std::ofstream(path) << contents;
    return path;
  }

  const std::string folder_ = ::testing::TempDir();
  const CertificateAuthority ca_{folder_, "ca"};
  const CertificateFiles own_ = ca_.Issue("own", {"127.0.0.1"});
  const CertificateFiles other_ = ca_.Issue("other", {"127.0.0.1"});
};

TEST_F(TlsTest, FilesAreRead) {
  auto server = ReadPem(Server(own_.certificate, own_.key, ca_.file()));
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->certificate, Contents(own_.certificate));
  EXPECT_EQ(server->key, Contents(own_.key));
  EXPECT_EQ(server->ca, Contents(ca_.file()));
  auto client = ReadPem(Client(ca_.file()));
  ASSERT_TRUE(client.ok()) << client.status();
  EXPECT_EQ(client->key, "");
  EXPECT_TRUE(ReadPem(Client(ca_.file(), own_.certificate, own_.key)).ok());
}

TEST_F(TlsTest, WhatIsNotThereIsNamed) {
  const std::string none = absl::StrCat(folder_, "/none.pem");
  ExpectError(Server(none, own_.key), ErrorCode::kIo, none);
  ExpectError(Server(own_.certificate, none), ErrorCode::kIo, none);
  ExpectError(Server(own_.certificate, own_.key, none), ErrorCode::kIo, none);
  ExpectError(Client(none), ErrorCode::kIo, none);
  ExpectError(Client(folder_), ErrorCode::kIo, folder_);
}

TEST_F(TlsTest, WhatIsLeftOutIsNamed) {
  ExpectError(Server("", own_.key), ErrorCode::kInvalidOption, "certificate");
  ExpectError(Server(own_.certificate, ""), ErrorCode::kInvalidOption, "key");
  ExpectError(Client(""), ErrorCode::kInvalidOption, "CA file");
  ExpectError(Client(ca_.file(), own_.certificate, ""), ErrorCode::kInvalidOption, "come together");
  ExpectError(Client(ca_.file(), "", own_.key), ErrorCode::kInvalidOption, "come together");
}

TEST_F(TlsTest, WhatIsNoCertificateOrKeyIsNamed) {
  const std::string text = Write("text.pem", "no PEM at all\n");
  const std::string empty = Write("empty.pem", "");
  const std::string cut = Write("cut.pem", Contents(own_.certificate).substr(0, 200));
  for (const std::string& bad : {text, empty, cut, own_.key}) {
    ExpectError(Server(bad, own_.key), ErrorCode::kInvalidOption, bad);
    ExpectError(Client(bad), ErrorCode::kInvalidOption, bad);
  }
  for (const std::string& bad : {text, empty, own_.certificate})
    ExpectError(Server(own_.certificate, bad), ErrorCode::kInvalidOption, bad);
}

TEST_F(TlsTest, AnEncryptedKeyIsRefusedAndNobodyIsAsked) {
  ExpectError(Server(own_.certificate, ca_.EncryptedKey(own_, "passphrase")), ErrorCode::kInvalidOption, "passphrase");
}

TEST_F(TlsTest, AKeyOfAnotherCertificateIsRefused) {
  ExpectError(Server(own_.certificate, other_.key), ErrorCode::kInvalidOption, other_.key);
  ExpectError(Client(ca_.file(), own_.certificate, other_.key), ErrorCode::kInvalidOption, other_.key);
}

TEST_F(TlsTest, AnExpiredCertificateIsRefusedByItsOwner) {
  const CertificateFiles old = ca_.Issue("old", {"127.0.0.1"}, -absl::Hours(1), -absl::Seconds(5));
  ExpectError(Server(old.certificate, old.key), ErrorCode::kInvalidOption, "expired");
}

}  // namespace
}  // namespace headrace
