# SPDX-License-Identifier: GPL-3.0-or-later
# A program of this collection's own in the build of any llama.cpp: CMake reads this after each project() (CMAKE_PROJECT_INCLUDE).
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR AND NOT TARGET rpc-cache)
    add_executable(rpc-cache ${CMAKE_CURRENT_LIST_DIR}/rpc-cache.cpp)
    target_compile_features(rpc-cache PRIVATE cxx_std_17)
    # Neither for some CPU nor with the source's own flags.
    set_target_properties(rpc-cache PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin COMPILE_OPTIONS -O2)
endif()
