# SPDX-License-Identifier: GPL-3.0-or-later
# A program of this collection's own, which rpc-cache.cmake adds to the build of a source that has what it needs.
add_executable(llama-plan ${CMAKE_CURRENT_LIST_DIR}/llama-plan.cpp)
target_compile_features(llama-plan PRIVATE cxx_std_17)
target_include_directories(llama-plan PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/tools/mtmd)
target_link_libraries(llama-plan PRIVATE llama-common mtmd llama)
# What the program says to these functions.
foreach(function ggml_backend_buffer_clear ggml_backend_tensor_set ggml_aligned_malloc ggml_aligned_free)
    target_link_options(llama-plan PRIVATE LINKER:--wrap=${function})
endforeach()
set_target_properties(llama-plan PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
