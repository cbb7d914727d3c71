// SPDX-License-Identifier: Apache-2.0
// What the ranks of one run know and strangers do not, and how they prove it without saying it.
//
//   server -> rank   challenge: a number that nobody saw before
//   rank -> server   hello: a number of its own, who it is, and a code over all of that
//   server -> rank   accepted: a code over the same two numbers, so that the rank knows rank 0
//
// The key is made of what all ranks were given (SHARDWRIGHT_MEETING_KEY), of what rank 0 wrote into
// the rendezvous file, and of what the launcher says about the run. Where there is only the last,
// the key is as secret as the number of a job. What follows the hello is neither encrypted nor
// authenticated message by message: the network must keep others from writing into connections.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/sha256.h"

namespace shardwright::exec {

using BootstrapKey = Digest;
using Nonce = Digest;

/// `given` to all ranks, `published` by rank 0's file, `run`: the launcher's words for this run.
BootstrapKey bootstrap_key(const std::string& given, const std::string& published,
                           const std::string& run);
/// Throws std::system_error where the system has no random numbers.
Nonce fresh_nonce();
/// 128 random bits as 32 hexadecimal digits.
std::string random_secret();

/// A rank's hello: its nonce, its proof and `text`.
std::vector<std::byte> make_hello(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                                  const Nonce& rank_nonce, const std::string& text);
struct Hello {
  Nonce nonce{};  // the rank's
  std::string text;
};
/// None when whoever sent it does not know the key or answers another challenge.
std::optional<Hello> check_hello(const BootstrapKey& key, const Nonce& server_nonce,
                                 std::span<const std::byte> hello);
/// The server's answer to a hello.
Digest acceptance(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                  const Nonce& rank_nonce);

}  // namespace shardwright::exec
