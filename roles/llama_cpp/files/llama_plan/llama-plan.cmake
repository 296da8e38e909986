# SPDX-License-Identifier: GPL-3.0-or-later
# A program of this collection's own, which rpc-cache.cmake adds to the build of a source that has what it needs.
add_executable(llama-plan ${CMAKE_CURRENT_LIST_DIR}/llama-plan.cpp)
target_compile_features(llama-plan PRIVATE cxx_std_17)
target_include_directories(llama-plan PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tools/mtmd)
target_link_libraries(llama-plan PRIVATE llama-common mtmd llama)
# What the program says to these two functions.
target_link_options(llama-plan PRIVATE LINKER:--wrap=ggml_backend_buffer_clear LINKER:--wrap=ggml_backend_tensor_set)
set_target_properties(llama-plan PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
