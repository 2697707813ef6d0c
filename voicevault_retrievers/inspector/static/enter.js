// Goes on to the page without the token in its address, and with the search behind #.
location.replace(`./${location.hash}`);
