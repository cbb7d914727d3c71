// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/bootstrap_key.h"

#include <fmt/core.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace shardwright::exec {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "getrandom");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

/// The code over both numbers and a text; `side` keeps the two directions apart.
Digest code(const BootstrapKey& key, const std::string& side,
            std::span<const std::byte> server_nonce, std::span<const std::byte> rank_nonce,
            const std::string& text) {
  std::vector<std::byte> message;
  const auto append = [&message](std::span<const std::byte> part) {
    message.insert(message.end(), part.begin(), part.end());
  };
  append(bytes_of(side));
  append(server_nonce);
  append(rank_nonce);
  append(bytes_of(text));
  return hmac_sha256(key, message);
}

}  // namespace

BootstrapKey bootstrap_key(const std::string& given, const std::string& published,
                           const std::string& run) {
  const std::string parts = fmt::format("{}:{}{}", published.size(), published, run);
  return hmac_sha256(bytes_of(given), bytes_of(parts));
}

Nonce fresh_nonce() {
  Nonce nonce{};
  fill_randomly(nonce);
  return nonce;
}

std::string random_secret() {
  std::array<std::byte, 16> bits{};
  fill_randomly(bits);
  return hex_of(bits);
}

std::vector<std::byte> make_hello(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                                  const Nonce& rank_nonce, const std::string& text) {
  std::vector<std::byte> hello(rank_nonce.begin(), rank_nonce.end());
  const Digest proof = code(key, "rank", server_nonce, rank_nonce, text);
  hello.insert(hello.end(), proof.begin(), proof.end());
  const auto words = bytes_of(text);
  hello.insert(hello.end(), words.begin(), words.end());
  return hello;
}

std::optional<Hello> check_hello(const BootstrapKey& key, const Nonce& server_nonce,
                                 std::span<const std::byte> hello) {
  constexpr std::size_t kDigest = std::tuple_size_v<Digest>;
  if (hello.size() < 2 * kDigest) return std::nullopt;
  Hello result;
  std::copy_n(hello.begin(), kDigest, result.nonce.begin());
  const auto text = hello.subspan(2 * kDigest);
  result.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  const Digest expected = code(key, "rank", server_nonce, result.nonce, result.text);
  if (!same_digest(expected, hello.subspan(kDigest, kDigest))) return std::nullopt;
  return result;
}

Digest acceptance(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                  const Nonce& rank_nonce) {
  return code(key, "rank 0", server_nonce, rank_nonce, "");
}

}  // namespace shardwright::exec
