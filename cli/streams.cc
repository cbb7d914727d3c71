// SPDX-License-Identifier: Apache-2.0
#include "cli/streams.h"

#include <fmt/core.h>

#include "cli/text.h"

namespace shardwright::cli {
namespace {

thread_local const Host* host_of_thread = nullptr;

}  // namespace

BootstrapPeer::BootstrapPeer(const Host& host) : host_(host), before_(host_of_thread) {
  host_of_thread = &host_;
}

BootstrapPeer::~BootstrapPeer() {
  host_of_thread = before_;
}

const Host* host() {
  return host_of_thread;
}

std::FILE* results() {
  return host_of_thread == nullptr ? stdout : host_of_thread->results;
}

std::FILE* messages() {
  return host_of_thread == nullptr ? stderr : host_of_thread->messages;
}

void notify(std::string_view sentence) {
  fmt::print(messages(), "{}\n", printable(sentence, true));
}

}  // namespace shardwright::cli
