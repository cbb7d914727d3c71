# SPDX-License-Identifier: Apache-2.0
# The planner as WebAssembly, for the page that scripts/planner writes.
# Exceptions of the machine itself: smaller and faster than calls through JavaScript. No signals, no threads.
add_compile_options(-fwasm-exceptions)
add_link_options(-fwasm-exceptions)
