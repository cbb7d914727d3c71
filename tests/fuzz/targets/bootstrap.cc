// SPDX-License-Identifier: Apache-2.0
// What reaches a rank from the network and from whoever starts it. The first byte says how the rest
// arrives: "s" as a stream at the reader of messages, "t" as the same of a rank that is trusted,
// "f" as a rendezvous file, "e" as variables of a launcher, one NAME=VALUE a line; else as texts of
// messages.
#include "exec/comm/bootstrap.h"

#include <map>

#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "tests/fuzz/fuzz_target.h"

namespace shardwright::fuzz {
namespace {

void read_texts(const std::string& text) {
  if (const auto says = exec::Introduction::from(text)) {
    const auto again = exec::Introduction::from(says->text());
    SHARDWRIGHT_CHECK(again && again->rank == says->rank && again->ranks == says->ranks &&
                          again->fingerprint == says->fingerprint,
                      "another introduction: {}", says->text());
  }
  if (const auto failure = exec::failure_from(text)) {
    SHARDWRIGHT_CHECK(
        failure->rank >= 0 && failure->code != ExitCode::kDone && failure->what.size() <= 4096 + 64,
        "rank {}, {} bytes", failure->rank, failure->what.size());
    for (const char c : failure->what) {
      SHARDWRIGHT_CHECK(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "byte {}", int{c});
    }
  }
  static const exec::BootstrapKey key = exec::bootstrap_key("sixteen letters!", "", "");
  SHARDWRIGHT_CHECK(!exec::check_hello(key, exec::Nonce{}, std::as_bytes(std::span(text))),
                    "a hello without the key");
}

void read_stream(const std::string& text, bool trusted) {
  auto [from, to] = exec::socket_pair();
  constexpr std::size_t kMost = std::size_t{64} << 10;  // what a socket holds that nobody reads
  from.send_all(std::as_bytes(std::span(text).first(std::min(text.size(), kMost))));
  from.shut_down();
  exec::MessageReader reader;
  if (trusted) reader.trust();
  while (reader.read_from(to)) {
    while (const auto message = reader.next()) {
      SHARDWRIGHT_CHECK(message->payload.size() <= kMost, "{} bytes", message->payload.size());
      read_texts(message->text());
    }
  }
}

void read_variables(const std::string& text) {
  std::map<std::string, std::string> variables;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    const std::size_t sign = line.find('=');
    if (sign != std::string::npos) variables[line.substr(0, sign)] = line.substr(sign + 1);
    begin = end + 1;
  }
  const exec::Environment environment = [&](const std::string& name) -> std::optional<std::string> {
    if (name == "XDG_RUNTIME_DIR") return scratch_folder().string();
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  const exec::LaunchEnvironment launch = exec::launch_environment(environment);
  SHARDWRIGHT_CHECK(launch.rank >= 0 && launch.rank < launch.ranks, "rank {} of {}", launch.rank,
                    launch.ranks);
  const exec::Rendezvous rendezvous =
      exec::choose_rendezvous(environment("RENDEZVOUS").value_or("auto"), launch, environment);
  SHARDWRIGHT_CHECK(!rendezvous.name().empty(), "no name");
  SHARDWRIGHT_CHECK(!rendezvous.file.empty() || (rendezvous.port > 0 && rendezvous.port < 65536),
                    "port {}", rendezvous.port);
}

void fuzz_bootstrap(std::string_view input) {
  if (input.empty()) return;
  const std::string rest(input.substr(1));
  switch (input.front()) {
    case 's':
    case 't':
      return read_stream(rest, input.front() == 't');
    case 'f': {
      const std::filesystem::path file = scratch_file("meet", rest);
      const exec::Environment none = [](const std::string&) { return std::nullopt; };
      const auto place = exec::choose_rendezvous("file://" + file.string(), {}, none).place();
      std::string why;
      const auto address = place.find(why);
      SHARDWRIGHT_CHECK(address || !why.empty(), "no reason");
      return;
    }
    case 'e':
      return read_variables(rest);
    default:
      read_texts(rest);
  }
}

SHARDWRIGHT_FUZZ_TARGET(bootstrap, fuzz_bootstrap, nullptr);

}  // namespace
}  // namespace shardwright::fuzz
