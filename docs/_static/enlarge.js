// Figures are wider than the column of text: a click opens one at its full size.
document.addEventListener("DOMContentLoaded", () => {
  for (const image of document.querySelectorAll("article img")) {
    if (image.closest("a")) continue;
    const link = document.createElement("a");
    link.href = image.src;
    link.title = "full size";
    image.replaceWith(link);
    link.append(image);
  }
});
