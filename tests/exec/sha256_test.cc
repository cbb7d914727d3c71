// SPDX-License-Identifier: Apache-2.0
// Guards exec/comm/sha256.h by the vectors of FIPS 180-4 (NIST's examples) and RFC 4231.
#include "exec/comm/sha256.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <span>
#include <string>

namespace shardwright::exec {
namespace {

std::string hex(const Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", std::to_integer<int>(byte));
  return text;
}

std::string sha(const std::string& message) {
  return hex(sha256(std::as_bytes(std::span(message))));
}

std::string mac(const std::string& key, const std::string& message) {
  return hex(hmac_sha256(std::as_bytes(std::span(key)), std::as_bytes(std::span(message))));
}

TEST(Sha256, AgreesWithNist) {
  EXPECT_EQ(sha(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, AuthenticatesAsRfc4231Says) {
  EXPECT_EQ(mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256, TellsDigestsApart) {
  const Digest a = sha256({});
  Digest b = a;
  EXPECT_TRUE(same_digest(a, b));
  b[31] ^= std::byte{1};
  EXPECT_FALSE(same_digest(a, b));
  EXPECT_FALSE(same_digest(a, std::span(a).first(31)));
}

}  // namespace
}  // namespace shardwright::exec
