# SPDX-License-Identifier: GPL-3.0-or-later
# A program of this collection's own in the build of any llama.cpp: CMake reads this after each project() (CMAKE_PROJECT_INCLUDE).
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR AND NOT TARGET rpc-cache)
    add_executable(rpc-cache ${CMAKE_CURRENT_LIST_DIR}/rpc-cache.cpp)
    target_compile_features(rpc-cache PRIVATE cxx_std_17)
    # Neither for some CPU nor with the source's own flags.
    set_target_properties(rpc-cache PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin COMPILE_OPTIONS -O2)
endif()

# With UNITE_SMALL_SOURCES, which is for builds that a person waits for: many small files that all read the same headers are compiled as one.
function(unite target folder)
    if(TARGET ${target})
        get_target_property(directory ${target} SOURCE_DIR)
        get_target_property(sources ${target} SOURCES)
        foreach(source ${sources})
            cmake_path(ABSOLUTE_PATH source BASE_DIRECTORY ${directory})
            if(source MATCHES "^${directory}/${folder}/[^/]+[.]cpp$")
                set_source_files_properties(${source} TARGET_DIRECTORY ${target} PROPERTIES UNITY_GROUP ${folder})
            endif()
        endforeach()
        set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
    endif()
endfunction()
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR AND UNITE_SMALL_SOURCES)
    cmake_language(DEFER CALL unite llama-common parsers)
    cmake_language(DEFER CALL unite mtmd models)
endif()
